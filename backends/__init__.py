"""What runs a model: `backends.engine.Engine` is the way in. Importing this package alone imports nothing else."""
