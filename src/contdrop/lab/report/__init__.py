"""What a store says, for people: tables, figures, a verdict and one page that can be sent. Never imports torch."""
