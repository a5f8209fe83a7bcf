"""The kernel text, and `source`, which puts it together."""
