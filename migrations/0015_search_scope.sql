-- A search that asks for a quality counts the faces in its scope before it chooses between the index and comparing with all of them: from here it
-- does so without reading the rows. On a million faces it takes some seconds to build, during which none is stored.
create index faces_scope_quality on faces (model_id, collection_id, quality_overall);
drop index faces_scope;
alter index faces_scope_quality rename to faces_scope;
