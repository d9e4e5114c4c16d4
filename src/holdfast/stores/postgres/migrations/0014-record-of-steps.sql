-- compatible: keep a record of the steps that the store has gone through

create table schema_steps (
    number integer primary key,
    name text not null,
    at bigint not null,
    version text not null
);

comment on table schema_steps is 'Internal: the steps that this schema has gone through.';
