"""The sizes, schedules and optimiser of the Long Range Arena's own program, larger than those of the paper."""
