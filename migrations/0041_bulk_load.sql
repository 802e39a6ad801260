-- True after an operator has dropped the vector index of the model, in order to store many faces.
-- While it is true, no start of the service builds the index. `index rebuild` sets it to false.
alter table embedding_models add column bulk_load boolean not null default false;
