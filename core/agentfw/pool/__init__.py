"""A fleet as a service: jobs in, agents run in warm VMs, results out. `jobs` and `backend` are what all of it agrees on."""
