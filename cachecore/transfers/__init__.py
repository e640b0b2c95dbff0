"""From what a caller asks for to bytes that moved: requests, both ends, running them, and handles to wait for."""
