"""The verbs of the API, each one synchronous step on the store. `serve.rest` chooses among them."""
