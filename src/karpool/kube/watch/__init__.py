"""Lists and watches that keep local copies current. Start with `informer`."""
