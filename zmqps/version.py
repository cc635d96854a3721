"""The release of this package; the protocol has a version of its own in `protocol.messages`."""

VERSION = "0.1.0"
