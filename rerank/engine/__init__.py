"""The engine: schedules the windows of concurrent requests on the models, by strategies, queues and workers."""
