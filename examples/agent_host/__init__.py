"""A host to copy: agents for several tenants, over HTTP.  python -m examples.agent_host"""
