"""Tables, figures and pages made from a store. Never imports torch."""
