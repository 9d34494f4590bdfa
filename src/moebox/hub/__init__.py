"""The Hugging Face Hub: lists of files with sizes and hashes, parts of files, and downloads that are verified.

`huggingface_hub` brings the endpoint (HF_ENDPOINT), tokens, proxies, offline mode and the cache (HF_HOME). It is
imported with the first request, because that takes half a second. Nothing from a repository is ever executed.
"""
