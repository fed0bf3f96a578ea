"""The paper's figures and claims, each to be run and looked at."""
