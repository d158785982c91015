"""A device that exists only in virtual time: profiles, costs, and a model of hardware queues."""
