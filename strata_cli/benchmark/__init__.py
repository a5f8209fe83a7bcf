"""The parts of `strata bench`: arms, prompts, the process that measures, what its figures mean, and how they are shown."""
