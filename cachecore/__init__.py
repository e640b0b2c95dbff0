"""Register paged KV caches and move their blocks between LLM serving processes."""
