"""What the logs of a run tell: reading, joining and judging them. See docs/events.md."""
