"""Parts of `bench/fleet.py`, one idea a file."""
