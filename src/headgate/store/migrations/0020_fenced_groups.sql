-- Whether the programs of a group pass its epoch along with all that they write: then one that ends its connection is gone.
ALTER TABLE headgate.consumer_group ADD COLUMN fenced boolean NOT NULL DEFAULT false;
