"""The service behind every port: its requests and their checks, limits of calls, statuses of errors, and the start."""
