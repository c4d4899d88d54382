"""The gateway: clients of any wire, served by the engine's models."""
