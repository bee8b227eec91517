"""Names of other libraries for their users. No other module of this package imports these; import the one that is needed."""
