"""The service behind every port: checks and conversion of messages, statuses of errors, and the start."""
