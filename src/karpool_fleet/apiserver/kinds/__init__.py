"""The kinds of the server: built-in ones, CustomResourceDefinitions, and the registry of both."""
