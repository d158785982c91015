"""A user's server as a tenant: started, kept, loaded with requests, and looked at from outside."""
