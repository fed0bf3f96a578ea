"""Closed-loop control with several sensors: a peg-in-hole task, demonstrations, policies and their study."""
