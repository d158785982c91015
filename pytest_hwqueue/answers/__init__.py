"""What people ask: each answer in a folder, with its command, its work and its report."""
