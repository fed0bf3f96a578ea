"""The balancing core: losses in, a scalar out whose backward pass delivers what the method decides."""
