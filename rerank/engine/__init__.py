"""The engine: schedules the windows of concurrent requests on the models. Strategies, queues, workers."""
