"""The methods of `CacheManager`, one file for each subject; `cachecore.manager` puts them together."""
