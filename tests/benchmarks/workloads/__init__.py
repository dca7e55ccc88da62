"""What is measured, one module per kind of work; each function returns a `Workload` in a process of its own."""
