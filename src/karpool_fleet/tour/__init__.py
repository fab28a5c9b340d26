"""The guided tour of `karpool up`: chapters with promises that are checked. Start with `tour`."""
