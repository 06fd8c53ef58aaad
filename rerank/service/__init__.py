"""The service that the ports call: requests and their checks, limits of calls, statuses of errors, and the start."""
