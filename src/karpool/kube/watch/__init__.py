"""Lists and watches that keep copies true. Start with `informer`."""
