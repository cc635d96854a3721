"""The text of a job file: read, checked, explained, documented; `zmqps.job` says what a job is."""
