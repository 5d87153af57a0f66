"""What Dagster sees: the component, assets, checks, jobs, the resource and the executor; no work of its own."""
