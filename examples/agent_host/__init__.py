"""A host to start from: agents for several tenants, over HTTP.  python -m examples.agent_host"""
