"""Real managers in processes, driven at random beside a plain-Python model of what they must do."""
