"""Tests of the command line, against a stand-in engine: they need no device."""
