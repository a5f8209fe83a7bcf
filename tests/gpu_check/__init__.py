"""`make gpu-check`: everything a person with a GPU can check, in one call, without a network, in less than eight minutes.

__main__.py: the command line. plan.py: what runs when, against the clock. correctness.py: the tests on a device, in processes of their own.
child.py: one measurement in a process of its own, of speed.py, copy.py or profile.py. shapes.py, weights.py: models of random weights, made on
the device. report.py: tables and aims. docs/benchmarks.md says what each figure means.
"""
