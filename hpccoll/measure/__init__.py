"""What a row took: statistics, stopping, bandwidths, records, and the tables and plots made of them."""
