"""The parts of bench/conformance.py, one idea a file: what runs a module, what is known to fail, what differs, the table."""
