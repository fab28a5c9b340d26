"""Which kinds there are: built-in ones, CustomResourceDefinitions, and the registry of both."""
