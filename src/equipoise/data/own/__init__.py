"""A user's own files and arrays: npz, manifests, pickles."""
