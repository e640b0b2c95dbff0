"""`cachecore demo`: a prefill and a decode process that share blocks of a paged KV cache, every moved word verified."""
