"""What people say of captions: which are asked about, and what the answers say."""
