"""The pictures of the documents, each made by a command from a real run."""
