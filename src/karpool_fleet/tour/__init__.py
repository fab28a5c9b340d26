"""The guided tour of `karpool up`: chapters with promises that are counted. Start in `tour`."""
